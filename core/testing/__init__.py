"""What plugin authors and our own tests build on: toy plugins with exactly known behaviour (`toys`)."""
