# The SPANK plugin: Slurm loads it into its commands and, as root, into its daemons, so it links the C library and json-c
# and nothing else, and shows Slurm nothing but its hooks. Slurm's own symbols are found in the loading process;
# with "now" a missing one refuses the plugin at once instead of ending a daemon at the first call.
if HAVE_SLURM
spankdir = $(libdir)/slurm
spank_LTLIBRARIES = spank_eth_hpp.la
spank_parts = \
	spank/plugin.h \
	spank/spank_eth_hpp.c \
	spank/child.c \
	spank/end_step.c \
	spank/folder.c \
	spank/node.c \
	spank/options.c \
	spank/step.c \
	spank/submit.c
# Of lib/inventory only what reads and writes the file: what looks for devices runs in a child.
spank_eth_hpp_la_SOURCES = $(spank_parts) \
	lib/inventory/inventory.c \
	lib/inventory/inventory_write.c
spank_eth_hpp_la_CPPFLAGS = $(AM_CPPFLAGS) $(SLURM_CFLAGS) \
	-DETH_HPP_SCANCEL='"$(SCANCEL)"' \
	-DETH_HPP_LAUNCHER='"$(bindir)/eth-hpp"' \
	-DETH_HPP_STEP_PROGRAM='"$(pkglibexecdir)/eth-hpp-step"'
spank_eth_hpp_la_CFLAGS = $(AM_CFLAGS) -fvisibility=default
spank_eth_hpp_la_LDFLAGS = -module -avoid-version -shared -Wl,-z,now \
	-Wl,--version-script=$(srcdir)/spank/spank_eth_hpp.map
spank_eth_hpp_la_DEPENDENCIES = libbase.la libmodel.la spank/spank_eth_hpp.map
spank_eth_hpp_la_LIBADD = libbase.la libmodel.la

# A sample, which enables nothing where it lies.
plugstackdir = $(docdir)/plugstack.conf.d
plugstack_DATA = spank/eth-hpp.conf
CLEANFILES += spank/eth-hpp.conf
spank/eth-hpp.conf: spank/plugstack.conf.in Makefile
	$(AM_V_GEN)$(MKDIR_P) $(@D) && sed 's|@spankdir@|$(spankdir)|' $(srcdir)/spank/plugstack.conf.in >$@

if !HAVE_SPANK_PREPEND_TASK_ARGV
pkglibexec_PROGRAMS = eth-hpp-step
eth_hpp_step_SOURCES = spank/eth-hpp-step.c
endif
endif
EXTRA_DIST += spank/plugstack.conf.in spank/spank_eth_hpp.map
