"""`python -m adagauss`: the command line where the script is not on the path."""

from adagauss.cli import main

main()
