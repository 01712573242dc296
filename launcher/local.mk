# The `eth-hpp` program: a file for each subcommand. All but main() is a library, for the unit tests.
bin_PROGRAMS += eth-hpp
noinst_LTLIBRARIES += liblauncher.la
liblauncher_la_SOURCES = \
	launcher/cache.c \
	launcher/calibrate.h \
	launcher/calibrate_device.c \
	launcher/calibrate_devices.c \
	launcher/calibrate_links.c \
	launcher/calibrate_pairs.c \
	launcher/calibrate_site.c \
	launcher/checkpoint.c \
	launcher/command.c launcher/command.h \
	launcher/exchange.c launcher/exchange.h \
	launcher/gpu.c launcher/gpu.h \
	launcher/inventory.c \
	launcher/launch.c launcher/launch.h \
	launcher/launch_cluster.c \
	launcher/launch_job.c \
	launcher/launch_plan.c \
	launcher/launch_program.c \
	launcher/launch_rounds.c \
	launcher/node.c launcher/node.h \
	launcher/plan.c \
	launcher/planning.c launcher/planning.h \
	launcher/profile.c \
	launcher/show.c \
	launcher/simulate.c \
	launcher/train.c launcher/train.h \
	launcher/train_checkpoint.c \
	launcher/train_options.c launcher/train_options.h \
	launcher/train_progress.c
launcher_libs = liblauncher.la libmodels.la libruntime.la libkernels.la libcomm.la \
	libbootstrap.la libplan.la libmodel.la libinventory.la libbase.la
eth_hpp_SOURCES = launcher/main.c
eth_hpp_LDADD = $(launcher_libs)
