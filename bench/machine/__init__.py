"""Describe this machine: devices, environment, tools."""
