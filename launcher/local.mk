# The `eth-hpp` program: a file for each subcommand.
bin_PROGRAMS += eth-hpp
eth_hpp_SOURCES = launcher/main.c launcher/command.h
eth_hpp_LDADD = libplan.la libinventory.la libbase.la
