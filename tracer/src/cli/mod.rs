//! One file a command: arguments are parsed there and resolved once into what the command needs.
