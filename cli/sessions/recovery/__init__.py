"""Sessions in the logs of earlier releases, whose Redis did not read them back when it started again."""
