"""Names of files: the paths and patterns of users, resolved in local folders and in stores.

`listing` interprets patterns; `matching` compares names with wildcards; `folders` lists local
folders, and `remote_listing` stores; `marks` refuses folders of tables.
"""
