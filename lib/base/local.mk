noinst_LTLIBRARIES += libbase.la
libbase_la_SOURCES = \
	lib/eth_hpp.h \
	lib/base/checksum.c lib/base/checksum.h \
	lib/base/clock.c lib/base/clock.h \
	lib/base/control.c lib/base/control.h \
	lib/base/dtype.c lib/base/dtype.h \
	lib/base/error.c lib/base/error.h \
	lib/base/file.c lib/base/file.h \
	lib/base/hostlist.c lib/base/hostlist.h \
	lib/base/json.c lib/base/json.h \
	lib/base/json_keys.c lib/base/json_keys.h \
	lib/base/json_read.c \
	lib/base/json_write.c \
	lib/base/library.c lib/base/library.h \
	lib/base/log.c lib/base/log.h \
	lib/base/option.c lib/base/option.h \
	lib/base/option_job.c
libbase_la_LIBADD = $(JSON_LIBS)
