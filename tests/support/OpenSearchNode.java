import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.function.UnaryOperator;
import org.opensearch.common.settings.Settings;
import org.opensearch.common.util.concurrent.ThreadContext;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.env.Environment;
import org.opensearch.node.Node;
import org.opensearch.plugins.ActionPlugin;
import org.opensearch.plugins.Plugin;
import org.opensearch.rest.BytesRestResponse;
import org.opensearch.rest.RestChannel;
import org.opensearch.rest.RestHandler;
import org.opensearch.rest.RestRequest;

/** One node of OpenSearch in this process, which demands one login; a file says its settings, and who may log in. */
public class OpenSearchNode extends Node {
    private static String login;

    OpenSearchNode(Environment environment, Collection<Class<? extends Plugin>> plugins) {
        super(environment, plugins, true);
    }

    /** Demands the login, as OpenSearch's security plugin does. Maven Central has that plugin without what it needs. */
    public static class Guard extends Plugin implements ActionPlugin {
        @Override
        public UnaryOperator<RestHandler> getRestHandlerWrapper(ThreadContext context) {
            ClassLoader loader = RestHandler.class.getClassLoader();
            // a proxy, since a parameter of handleRequest has another package in each major version
            return handler -> (RestHandler) Proxy.newProxyInstance(loader, new Class<?>[] {RestHandler.class}, (self, method, given) -> {
                boolean asks = method.getName().equals("handleRequest");
                if (asks && !login.equals(((RestRequest) given[0]).header("Authorization"))) {
                    ((RestChannel) given[1]).sendResponse(new BytesRestResponse(RestStatus.UNAUTHORIZED, "Unauthorized"));
                    return null;
                }
                try {
                    return method.invoke(handler, given);
                } catch (InvocationTargetException error) {
                    throw error.getCause();
                }
            });
        }
    }

    @SuppressWarnings("unchecked")
    private static Class<? extends Plugin> plugin(String name) throws ClassNotFoundException {
        return (Class<? extends Plugin>) Class.forName(name);
    }

    public static void main(String[] arguments) throws Exception {
        Path home = Path.of(arguments[0]);
        Properties given = new Properties();
        try (var reader = java.nio.file.Files.newBufferedReader(home.resolve("node.properties"))) {
            given.load(reader);
        }
        byte[] user = ((String) given.remove("login")).getBytes(StandardCharsets.UTF_8);
        login = "Basic " + Base64.getEncoder().encodeToString(user);
        Settings.Builder settings = Settings.builder().put("path.home", home.toString());
        given.forEach((name, value) -> settings.put((String) name, (String) value));
        Node node = new OpenSearchNode(
            new Environment(settings.build(), home.resolve("config")),
            List.of(
                plugin("org.opensearch.transport.Netty4Plugin"),
                plugin("org.opensearch.analysis.common.CommonAnalysisPlugin"),
                Guard.class
            )
        );
        node.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                node.close();
            } catch (java.io.IOException error) {
                error.printStackTrace();
            }
        }));
        Thread.currentThread().join();
    }
}
