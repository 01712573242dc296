# The `eth-hpp` program: a file for each subcommand.
bin_PROGRAMS += eth-hpp
eth_hpp_SOURCES = \
	launcher/command.c launcher/command.h \
	launcher/inventory.c \
	launcher/main.c \
	launcher/node.c launcher/node.h \
	launcher/plan.c \
	launcher/show.c \
	launcher/simulate.c
eth_hpp_LDADD = libplan.la libmodel.la libinventory.la libbase.la
