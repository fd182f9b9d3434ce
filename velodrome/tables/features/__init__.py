"""Features of bars, by name or as functions: what each is, how it is parsed and how it is computed."""
