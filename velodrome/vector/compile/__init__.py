"""How a rule and a loop become machine code, and where that is kept."""
