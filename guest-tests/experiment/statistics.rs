//! What many figures say together.

/// Median and spread of some measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// Smallest.
    pub(crate) low: f64,
    /// The one in the middle, or halfway between the two in the middle.
    pub(crate) median: f64,
    /// Largest.
    pub(crate) high: f64,
}

impl Spread {
    /// Of figures in any order; none of no figures.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Spread { low, median, high })
    }
}

/// Mean and standard deviation (of the figures themselves, not estimated for more); zero of no figures.
pub(crate) fn mean_and_deviation(figures: &[f64]) -> (f64, f64) {
    if figures.is_empty() {
        return (0.0, 0.0);
    }
    let count = figures.len() as f64;
    let mean = figures.iter().sum::<f64>() / count;
    let variance = figures.iter().map(|figure| (figure - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// Part of a whole; zero of nothing.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let odd = Spread::of([9.0, 1.0, 4.0]).unwrap();
        assert_eq!(odd, Spread { low: 1.0, median: 4.0, high: 9.0 });
        let even = Spread::of([4.0, 1.0, 9.0, 2.0]).unwrap();
        assert_eq!(even, Spread { low: 1.0, median: 3.0, high: 9.0 });
        let one = Spread::of([7.0]).unwrap();
        assert_eq!(one, Spread { low: 7.0, median: 7.0, high: 7.0 });
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn deviations_are_those_of_the_figures() {
        assert_eq!(mean_and_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), (5.0, 2.0));
        assert_eq!(mean_and_deviation(&[3.0]), (3.0, 0.0));
        assert_eq!(mean_and_deviation(&[]), (0.0, 0.0));
    }

    #[test]
    fn nothing_of_nothing_is_no_share() {
        assert_eq!((share(1, 4), share(0, 0)), (0.25, 0.0));
    }
}
