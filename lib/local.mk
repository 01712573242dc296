# The library of the public API (eth_hpp.h); nothing else is visible in it.
lib_LTLIBRARIES += libethhpp.la
libethhpp_la_SOURCES =
libethhpp_la_LIBADD = \
	libruntime.la libcomm.la libbootstrap.la libkernels.la libplan.la libmodel.la \
	libinventory.la libbase.la
libethhpp_la_LDFLAGS = -version-info 1:0:0 -no-undefined
include_HEADERS += lib/eth_hpp.h
pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA = lib/eth-hpp.pc
