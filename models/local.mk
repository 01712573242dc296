# The built-in models, on the public API and the table of tensor operations.
noinst_LTLIBRARIES += libmodels.la
libmodels_la_SOURCES = \
	models/transformer.c models/transformer.h \
	models/transformer_layers.c models/transformer_layers.h \
	models/transformer_measure.c models/transformer_measure.h \
	models/transformer_stage.c models/transformer_stage.h \
	models/transformer_tensors.c models/transformer_tensors.h
libmodels_la_LIBADD = libmodel.la
