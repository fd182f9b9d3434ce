"""What a run takes of the machine. Read `use` (how busy it is) and `memory` (what to do when it runs out)."""
