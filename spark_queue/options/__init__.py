"""Options, arguments and URLs: strings in, checked values out. No database, no Spark."""
