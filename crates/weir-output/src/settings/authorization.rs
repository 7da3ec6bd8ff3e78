//! Settings of outputs that have to show a key or token to an HTTP receiver.

use std::collections::BTreeMap;

use weir_config::{Files, Secret, SettingProblem, settings};

settings! {
    /// The credentials of requests.
    pub struct Authorization {
        headers: BTreeMap<String, Secret> = "{}"
            .effect("Headers of every request (metadata in gRPC), such as `Authorization` or `X-Scope-OrgID`. Values are never shown.")
            .change("if your receiver requires a key or a tenant.");
        headers_file: BTreeMap<String, String> = "{}"
            .effect("As `headers`, each value in a file. The files are read again when they change.")
            .change("if you keep keys in files.")
            .file_of("headers");
        bearer_token: Secret = "''"
            .effect("The token of every request's header `Authorization: Bearer TOKEN`. It is never shown.")
            .zero("Empty: there is no such header.")
            .change("if your receiver requires a token.");
        bearer_token_file: String = "''"
            .effect("A file with the token. It is read again when it changes.")
            .zero("Empty: the token is not in a file.")
            .change("if your tokens are replaced while weir runs, as Kubernetes does with those of service accounts.")
            .file_of("bearer_token");
    }
}

impl Authorization {
    /// Reads the files.
    pub(crate) fn read(&mut self, files: &mut Files<'_, '_, '_>) {
        files.read("headers_file", &mut self.headers, &self.headers_file);
        files.read(
            "bearer_token_file",
            &mut self.bearer_token,
            &self.bearer_token_file,
        );
    }

    /// A token sets a header itself.
    pub(crate) fn check(&self) -> Result<(), SettingProblem> {
        let is_set = |name: &String| name.eq_ignore_ascii_case("authorization");
        if !self.bearer_token.is_empty() && self.headers.keys().any(is_set) {
            let message = "`headers` sets Authorization too; only one of them may";
            return Err(SettingProblem::new("bearer_token", message));
        }
        Ok(())
    }
}
