# What a node has. Nothing here links a driver: NVML is opened at run time.
noinst_LTLIBRARIES += libinventory.la
libinventory_la_SOURCES = \
	lib/inventory/collect.c \
	lib/inventory/device_db.c lib/inventory/device_db.h \
	lib/inventory/inventory.c lib/inventory/inventory.h \
	lib/inventory/inventory_write.c \
	lib/inventory/nvml.c lib/inventory/nvml_api.h \
	lib/inventory/nvml_links.c \
	lib/inventory/site_file.c \
	lib/inventory/sources.h \
	lib/inventory/sysfs.c
