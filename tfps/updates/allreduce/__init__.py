"""Updates of dense variables by collectives among elastic workers."""
