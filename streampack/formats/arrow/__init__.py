"""Arrow files of every form, read by pyarrow; where their record batches lie is read here."""
