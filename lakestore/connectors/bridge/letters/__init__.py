"""Dead letters that are there: listed, shown, replayed and dropped."""
