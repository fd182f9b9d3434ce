"""What a run is told: every field once, with its meaning and range, and files, presets and overrides that set them.

Read `sections` (how a field is declared, and the sections about prices and about what is kept), `parameters` (the
environment and what it takes), `run_config` (all sections, and which of them have an effect), `messages` (what is said
about a wrong setting), `files` (from a preset, a file and overrides to a configuration), `explain` (tables, help, YAML
and the page of the docs), `others` (PPO's settings as other libraries have them), `changes` (what a run that goes on
may be told anew).
"""
