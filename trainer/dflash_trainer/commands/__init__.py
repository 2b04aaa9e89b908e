"""One module a verb: HELP, add_arguments(parser) and run(arguments, config). Importing one loads no torch."""
