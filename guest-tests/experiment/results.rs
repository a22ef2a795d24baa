//! Where results go.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use guest_tests::build;

use crate::csv::{self, Column};

/// What is in a folder of results, beside the picture: the report, and every measurement.
pub(crate) const REPORT: &str = "report.md";
pub(crate) const RUNS: &str = "runs.csv";

/// What has been measured so far.
pub(crate) struct Done<R> {
    pub(crate) runs: Vec<R>,
    /// Release of the guest's kernel.
    pub(crate) kernel: String,
}

impl<R> Default for Done<R> {
    fn default() -> Self {
        Done { runs: Vec::new(), kernel: String::new() }
    }
}

impl<R> Done<R> {
    /// Adds a measurement, and saves all there are.
    pub(crate) fn add<const N: usize>(&mut self, run: R, columns: &[Column<R>; N], results: &Results) {
        self.runs.push(run);
        let saved = results.save(Path::new(RUNS), &csv::table(columns, &self.runs));
        saved.map(drop).unwrap_or_else(|message| panic!("{message}"));
    }
}

/// The folder of an experiment's results.
#[derive(Debug)]
pub(crate) struct Results(PathBuf);

impl Results {
    /// `out`, or a folder of the experiment `name` and its date; makes it.
    pub(crate) fn new(name: &str, date: &str, out: Option<&Path>) -> Result<Results, String> {
        let folder = out.map_or_else(
            || build::target().join("experiments").join(format!("{name}-{}", date.replace([' ', ':'], "-"))),
            Path::to_owned,
        );
        match fs::create_dir_all(&folder) {
            Ok(()) => Ok(Results(folder)),
            Err(error) => Err(format!("Could not make {}: {error}", folder.display())),
        }
    }

    /// Writes a file.
    pub(crate) fn save(&self, name: &Path, text: &str) -> Result<PathBuf, String> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(|error| format!("Could not write {}: {error}", path.display()))?;
        Ok(path)
    }

    /// Writes all files and names them on standard output; gives the exit status, which says whether counters hold what
    /// they must, or what kept the experiment from its end.
    pub(crate) fn finish(
        &self,
        files: &[(&str, String)],
        outcome: Result<(), ExitCode>,
        counters_hold: bool,
    ) -> ExitCode {
        for (name, text) in files {
            match self.save(Path::new(name), text) {
                Ok(path) => println!("{}", path.display()),
                Err(message) => {
                    eprintln!("error: {message}");
                    return ExitCode::FAILURE;
                }
            }
        }
        match outcome {
            Err(status) => status,
            Ok(()) if counters_hold => ExitCode::SUCCESS,
            Ok(()) => {
                eprintln!("error: Not all relations between counters hold, see above");
                ExitCode::FAILURE
            }
        }
    }
}
