"""Files of rows with columns, as Arrow gives them: the part that all their formats share."""
