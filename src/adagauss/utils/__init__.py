"""Files, progress, devices and registries: no knowledge of learning."""
