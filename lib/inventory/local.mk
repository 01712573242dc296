# what this folder builds
noinst_LTLIBRARIES += libinventory.la
libinventory_la_SOURCES = \
	lib/inventory/device_db.c lib/inventory/device_db.h
