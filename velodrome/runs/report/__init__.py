"""What people read afterwards: tables, charts, the HTML page."""
