//! The table of contexts.

mod find;
mod give_back;
