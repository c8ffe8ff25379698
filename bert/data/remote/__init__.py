"""Data over the network: named sources, their files, downloads and checksums."""
