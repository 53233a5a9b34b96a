"""What the SQL sink does its own way on each kind of database."""
