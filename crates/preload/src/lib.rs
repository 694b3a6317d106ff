//! libzfolio.so: start-up, interposition.
