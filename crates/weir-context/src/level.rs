//! Instructions beyond the baseline of the architecture.

/// Instructions detected on this processor. Chosen once per process: hashes of different levels differ.
///
/// A level is a proof: only detection creates one above [`Level::PORTABLE`], so its holder may use its instructions, as
/// [`compiled_for_levels`](crate::compiled_for_levels) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(Features);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Features {
    Nothing,
    /// x86-64 since about 2013: AVX2, bit manipulation, AES rounds.
    Aes,
    /// x86-64 with AVX-512 and vector AES (Intel since Ice Lake, AMD since Zen 4): loads of up to 64 bytes whose end is a mask, so
    /// that no branch depends on the length of a text.
    Wide,
}

impl Level {
    /// The baseline.
    pub const PORTABLE: Level = Level(Features::Nothing);

    /// The highest level of this processor.
    pub fn detect() -> Level {
        #[cfg(target_arch = "x86_64")]
        match crate::compiled_for_levels!(@with_features detected) {
            (true, true) => return Level(Features::Wide),
            (true, false) => return Level(Features::Aes),
            _ => {}
        }
        Level::PORTABLE
    }

    /// All levels of this processor, in ascending order.
    pub fn available() -> impl Iterator<Item = Level> {
        let highest = Level::detect();
        [Features::Nothing, Features::Aes, Features::Wide]
            .into_iter()
            .map(Level)
            .filter(move |level| *level <= highest)
    }

    /// Whether the processor has AVX-512 and vector AES.
    #[inline(always)]
    pub fn is_wide(self) -> bool {
        self.0 == Features::Wide
    }

    /// Whether the processor has AVX2 and AES, but not AVX-512 or not vector AES.
    #[inline(always)]
    pub fn is_aes(self) -> bool {
        self.0 == Features::Aes
    }
}

/// Defines a method that is compiled once per [`Level`] and calls the form for the level at hand:
///
/// ```text
/// compiled_for_levels! {
///     /// What it does.
///     pub fn find(&mut self: Contexts, name: &[u8]) -> Option<u32>;
///     level: self.level;
///     body: find_inlined
/// }
/// ```
///
/// `body` is a method with the same arguments, marked `#[inline(always)]` so that it becomes part of each form.
#[macro_export]
macro_rules! compiled_for_levels {
    // The one list of the instructions of each level.
    (@with_features $then:ident $($rest:tt)*) => {
        $crate::compiled_for_levels! {
            @$then
            ["avx2", "bmi1", "bmi2", "lzcnt", "popcnt", "aes"]
            ["avx512f", "avx512bw", "avx512vl", "vaes"]
            $($rest)*
        }
    };
    (@detected [$($aes:tt),*] [$($wide:tt),*]) => {
        (
            true $(&& ::std::arch::is_x86_feature_detected!($aes))*,
            true $(&& ::std::arch::is_x86_feature_detected!($wide))*,
        )
    };
    (@method [$($aes:tt),*] [$($wide:tt),*]
        $(#[$meta:meta])*
        $vis:vis fn $name:ident(&mut $this:ident: $type:ty $(, $argument:ident: $of:ty)*) $(-> $result:ty)?;
        level: $level:expr;
        body: $body:ident
    ) => {
        $(#[$meta])*
        $vis fn $name(&mut $this $(, $argument: $of)*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature($(enable = $aes),*)]
                fn aes(this: &mut $type $(, $argument: $of)*) $(-> $result)? {
                    this.$body($($argument),*)
                }
                #[target_feature($(enable = $aes,)* $(enable = $wide),*)]
                fn wide(this: &mut $type $(, $argument: $of)*) $(-> $result)? {
                    this.$body($($argument),*)
                }
                let level: $crate::Level = $level;
                if level.is_wide() {
                    // SAFETY: a level proves that the processor has what its form is compiled for.
                    #[allow(unsafe_code)]
                    return unsafe { wide($this $(, $argument)*) };
                }
                if level.is_aes() {
                    // SAFETY: as above.
                    #[allow(unsafe_code)]
                    return unsafe { aes($this $(, $argument)*) };
                }
            }
            $this.$body($($argument),*)
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $($rest:tt)*) => {
        $crate::compiled_for_levels! { @with_features method $(#[$meta])* $vis fn $($rest)* }
    };
}
