/* Control characters: what comes from outside and has some could forge lines, or give a terminal
 * commands where it is shown. */
#ifndef ETH_HPP_BASE_CONTROL_H
#define ETH_HPP_BASE_CONTROL_H

/* How many bytes the control character has that begins here, in UTF-8; 0 where there is none. A
 * NUL byte is one. */
int eth_hpp_control_bytes(const char *text);

#endif
