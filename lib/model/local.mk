# Models as planning sees them. Needs libc and json-c only: the Slurm plugin links it.
noinst_LTLIBRARIES += libmodel.la
libmodel_la_SOURCES = \
	lib/model/config.c \
	lib/model/config_write.c lib/model/config_write.h \
	lib/model/transformer_memory.c lib/model/transformer_memory.h \
	lib/model/model.c lib/model/model.h \
	lib/model/preset.c
