//! Metrics: a crate declares its own, as structs that register themselves, with the macro of the same name.

mod exposition;
mod labels;

pub use exposition::Exposition;
pub use labels::{ReasonName, Variant};
#[doc(hidden)]
pub use prometheus_client::registry::Registry;

/// Declares a struct of metrics, its `Default` and its `register`. A row is a field with its type, its first value
/// where the type has no default, its name, and its help.
#[macro_export]
macro_rules! metrics {
    (
        $(#[$meta:meta])*
        pub struct $struct:ident {
            $($(#[$doc:meta])* $vis:vis $field:ident: $type:ty $(= $new:expr)?, $name:literal, $help:literal;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $struct {
            $($(#[$doc])* $vis $field: $type,)+
        }

        impl Default for $struct {
            fn default() -> Self {
                Self { $($field: $crate::metrics!(@new $($new)?),)+ }
            }
        }

        impl $struct {
            pub fn register(&self, registry: &mut $crate::metrics::Registry) {
                $(registry.register($name, $help, self.$field.clone());)+
            }
        }
    };
    (@new) => { Default::default() };
    (@new $new:expr) => { $new };
}
