"""What a run is told: fields, files, presets, messages."""
