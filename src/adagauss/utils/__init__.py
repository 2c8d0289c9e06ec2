"""Files, devices, progress and registries."""
