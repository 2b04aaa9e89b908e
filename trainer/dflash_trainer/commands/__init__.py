"""One module per command: HELP, add_arguments(parser) and run(arguments, config). Importing one does not load torch."""
