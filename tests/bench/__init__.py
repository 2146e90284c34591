"""The figures of `make bench`: one module for each, over the set-up of stage.py."""
