# Programs for a machine with a GPU, which tests/device/build packs; the tests run them on an emulated one.
device_check = \
	tests/device/check.c tests/device/check.h \
	tests/device/check_all.c \
	tests/device/check_kernels.c \
	tests/device/values.c tests/device/values.h
EXTRA_DIST += tests/device/build tests/device/check_run tests/device/run

if HAVE_ONEDNN
check_PROGRAMS += tests/device/check_kernels tests/device/train
tests_device_check_kernels_SOURCES = $(device_check)
tests_device_check_kernels_LDADD = libkernels64.la libkernels.la libbase.la
tests_device_train_SOURCES = tests/device/train.c
tests_device_train_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests
tests_device_train_LDADD = liblauncher.la libmodels.la tests/emulation/libranks.la libruntime.la libcomm.la \
	libbootstrap.la libkernels.la libplan.la libmodel.la libinventory.la libbase.la
else
EXTRA_DIST += $(device_check) tests/device/train.c
endif
