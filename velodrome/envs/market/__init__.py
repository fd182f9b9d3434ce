"""What environments on prices share: where episodes begin and end, what fills cost, statistics."""
