# noinst_LTLIBRARIES += libinventory.la
