noinst_LTLIBRARIES += libbootstrap.la
libbootstrap_la_SOURCES = \
	lib/bootstrap/bootstrap.c lib/bootstrap/bootstrap.h \
	lib/bootstrap/component.h \
	lib/bootstrap/first_here.c lib/bootstrap/first_here.h \
	lib/bootstrap/pmi2.c \
	lib/bootstrap/pmi2_wire.c lib/bootstrap/pmi2_wire.h \
	lib/bootstrap/single.c \
	lib/bootstrap/step_end.c lib/bootstrap/step_end.h
libbootstrap_la_CFLAGS = $(AM_CFLAGS) $(PMIX_CFLAGS)
libbootstrap_la_LIBADD = $(PMIX_LIBS)
if HAVE_PMIX
libbootstrap_la_SOURCES += lib/bootstrap/pmix.c \
	lib/bootstrap/pmix_presence.c lib/bootstrap/pmix_presence.h
endif
