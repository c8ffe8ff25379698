"""What this machine is: devices, environment, tools."""
