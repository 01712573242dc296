noinst_LTLIBRARIES += libruntime.la
libruntime_la_SOURCES = \
	lib/runtime/arena.c lib/runtime/arena.h \
	lib/runtime/capabilities.c lib/runtime/capabilities.h \
	lib/runtime/data.c lib/runtime/data.h \
	lib/runtime/emulation.c lib/runtime/emulation.h
