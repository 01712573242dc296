# The built-in models, on the public API and the table of tensor operations.
noinst_LTLIBRARIES += libmodels.la
libmodels_la_SOURCES = \
	models/gpt.c models/gpt.h \
	models/gpt_layers.c models/gpt_layers.h \
	models/gpt_measure.c models/gpt_measure.h \
	models/gpt_stage.c models/gpt_stage.h \
	models/gpt_tensors.c models/gpt_tensors.h
libmodels_la_LIBADD = libmodel.la
