noinst_LTLIBRARIES += libruntime.la
libruntime_la_SOURCES = \
	lib/runtime/arena.c lib/runtime/arena.h \
	lib/runtime/capabilities.c lib/runtime/capabilities.h \
	lib/runtime/context.c lib/runtime/context.h \
	lib/runtime/data.c lib/runtime/data.h \
	lib/runtime/emulation.c lib/runtime/emulation.h \
	lib/runtime/executor.c \
	lib/runtime/executor_open.c \
	lib/runtime/handover.c \
	lib/runtime/init.c \
	lib/runtime/leave.c \
	lib/runtime/optimizer.c \
	lib/runtime/register.c \
	lib/runtime/replicas.c \
	lib/runtime/sync.c
