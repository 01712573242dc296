noinst_LTLIBRARIES += libmodel.la
libmodel_la_SOURCES = \
	lib/model/gpt_memory.c lib/model/gpt_memory.h
