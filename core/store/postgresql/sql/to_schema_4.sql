-- From schema 3 to 4, in which entries may wait in files; clients of schema 3 go on. The new tables come with a new store's.
update {s}.xq_store set schema_version = 4;
